"""Read side of the store: resolve a reference, fetch, verify."""
