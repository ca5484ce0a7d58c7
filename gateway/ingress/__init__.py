"""Who may come in: authentication, hosts, CORS, and the headers of every answer."""
