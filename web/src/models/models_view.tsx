export default function ModelsView({ name }: { name: string | null }) {
  return <h1 className="p-4 text-xl font-semibold">Models {name}</h1>;
}
