"""A page that asks a model live and inspects its answers, token by token."""
