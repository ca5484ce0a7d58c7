"""The client's side: connections, requests as they are read, and answers as they are written."""
