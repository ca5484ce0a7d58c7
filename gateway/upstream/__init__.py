"""HTTP/1.1 client for engines, by callbacks: connections, their pool, and addresses."""
