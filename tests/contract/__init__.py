"""The contract of SPEC.md, held against every op of the registry."""
