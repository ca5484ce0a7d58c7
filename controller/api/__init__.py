"""The controller's HTTP routes: the admin API (`admin_models`, `admin_plans`, `admin_journal`, `admin_logs`), the
WebSocket to gateways (`link`), and routes for the command line (`internal`). `app` assembles them. Never published:
clients reach the admin API through the gateway.
"""
