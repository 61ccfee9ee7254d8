"""Source to machine code to launch: compilers, cache and host runtime."""
