"""`python -m partita.bench.rule_generation [FILE] [--json]`: the same as `partita rules generate`."""

import sys

from ...cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["rules", "generate"]
    main()
