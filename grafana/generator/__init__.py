"""Makes the dashboards: one file per dashboard says what it shows, `panels` says it in Grafana's words."""
