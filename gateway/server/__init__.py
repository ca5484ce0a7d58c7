"""The client's side of HTTP/1.1 and WebSocket. `connection` answers requests in order, `request_reader` reads them
within limits, `call` is one inference request, `tls_certificate` reloads certificates.
"""
