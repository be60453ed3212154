"""GGUF files: read once, unpacked on all cores, kept as a folder of safetensors."""
