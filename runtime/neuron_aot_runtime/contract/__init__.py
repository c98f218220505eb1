"""What the toolchain promises and the runtime relies on: manifest, digests, layout, configuration rules, errors."""
