"""What tests share: tiny models, a plain reference, made-up runs and worlds."""
