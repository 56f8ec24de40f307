"""The command line: `anabranch ask | strategies | launch | doctor | trace`. It wires the other parts together."""
