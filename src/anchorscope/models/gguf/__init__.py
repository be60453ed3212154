"""GGUF files: converted once by transformers, and kept as a folder of safetensors."""
