"""What the app and the server share: the guard in front of them, and the HTTP server under them."""
