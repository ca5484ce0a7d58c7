export default function DocumentsView({ name }: { name: string | null }) {
  return <h1 className="p-4 text-xl font-semibold">Documents {name}</h1>;
}
