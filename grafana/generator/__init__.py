"""Makes the dashboards: one file per dashboard says what it shows, `panels` and `board` say it in Grafana's words."""
