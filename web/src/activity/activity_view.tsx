export default function ActivityView() {
  return <h1 className="p-4 text-xl font-semibold">Activity</h1>;
}
