"""The controller's HTTP routes: the admin API (`admin_models`, `admin_plans`, `admin_hosts`, `admin_journal`,
`admin_downloads`), the WebSocket to gateways, and routes for the command line. `app` assembles them. Never published:
clients reach the admin API through the gateway.
"""
