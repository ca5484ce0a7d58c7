export default function SettingsView() {
  return <h1 className="p-4 text-xl font-semibold">Settings</h1>;
}
