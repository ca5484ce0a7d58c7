"""What Prometheus and Grafana are given: dashboards, scrape targets, rules, and the code that makes the dashboards."""
