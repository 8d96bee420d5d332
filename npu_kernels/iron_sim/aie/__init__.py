"""Stand-ins for the classes of IRON 1.4.2: what a design says is remembered, not emitted."""
