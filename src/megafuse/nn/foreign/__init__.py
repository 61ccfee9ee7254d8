"""Modules of other libraries that compute what one of ours does, recognised by what they hold.

A LlamaMLP is three linear layers and an activation, under any names. Such a module gets our
forward and stays what it is otherwise: its class becomes a subclass of its class (`subclass`), its
children and Parameters keep their names and places, and its own forward still runs where the fused
one would skip something. Whether the structure means what it seems to is tried out on a small copy
(`trial`); no class or attribute names are asked for.
"""
