"""The compiler's front end: capture, lowering, passes over the IR, all held against eager."""
