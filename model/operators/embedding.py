"""Table look-ups."""

from ..operator import Operator, register

# Autograd keeps the ids only; the gradient of the table is as large as the table.
register(Operator("embedding", ("w", "ids"), "y[b.., e] = w[ids[b..], e]", "F.embedding({ids}, {w})", saved=("ids",)))
