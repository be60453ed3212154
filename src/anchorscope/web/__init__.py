"""The guard and the HTTP server under the app and the server of detectors."""
