"""Megatron's attention and perceptron, from what the model says to tensor parallelism, in eight substitutions.

Unity (OSDI 2022), Figure 10. Each rule is proved for all sizes and degrees, then applied, and the graph printed.
`[4/2, 8]`: 4 in 2 parts; `*2`: 2 replicas.
"""

from partita.formulation.substitution.apply import Graph, apply_rule, matches, shared
from partita.formulation.substitution.text import parse_rules

RULES = parse_rules("""
heads of queries, keys and values:                  # 1
    x[b, s, k], w[h, k, d]
    y = einsum(x, w, equation="bsk,hkd->bhsd")
  =>
    z = einsum(replicate(x, degree=n), partition(w, dim=0, degree=n), equation="bsk,hkd->bhsd")
    y = combine(z, dim=1, degree=n)
  where n divides h

combine behind scores:                              # 2
    q[b, h/n, s, d], k[b, h/n, t, d]
    y = einsum(combine(q, dim=1, degree=n), combine(k, dim=1, degree=n), equation="bhsd,bhtd->bhst")
  =>
    y = combine(einsum(q, k, equation="bhsd,bhtd->bhst"), dim=1, degree=n)

combine behind softmax:                             # 3
    x[b, h/n, s, t]
    y = softmax(combine(x, dim=1, degree=n), dim=3)
  =>
    y = combine(softmax(x, dim=3), dim=1, degree=n)

combine behind values:                              # 4
    p[b, h/n, s, t], v[b, h/n, t, d]
    y = einsum(combine(p, dim=1, degree=n), combine(v, dim=1, degree=n), equation="bhst,bhtd->bhsd")
  =>
    y = combine(einsum(p, v, equation="bhst,bhtd->bhsd"), dim=1, degree=n)

heads are summed:                                   # 5
    a[b, h/n, s, d], w[h, d, o]
    y = einsum(combine(a, dim=1, degree=n), w, equation="bhsd,hdo->bso")
  =>
    y = reduce(einsum(a, partition(w, dim=0, degree=n), equation="bhsd,hdo->bso"), degree=n)

columns:                                            # 6
    x[b, s, k], w[k, f]
    y = matmul(x, w)
  =>
    y = combine(matmul(replicate(x, degree=n), partition(w, dim=1, degree=n)), dim=2, degree=n)
  where n divides f

combine behind relu:                                # 7
    x[b, s, f/n]
    y = relu(combine(x, dim=2, degree=n))
  =>
    y = combine(relu(x), dim=2, degree=n)

rows:                                               # 8
    x[b, s, f/n], w[f, k]
    y = matmul(combine(x, dim=2, degree=n), w)
  =>
    y = reduce(matmul(x, partition(w, dim=0, degree=n)), degree=n)
""")

BLOCK = """
    x[2, 3, 8], wq[4, 8, 2], wk[4, 8, 2], wv[4, 8, 2], wo[4, 2, 8], w1[8, 16], w2[16, 8]
    q = einsum(x, wq, equation="bsk,hkd->bhsd")
    k = einsum(x, wk, equation="bsk,hkd->bhsd")
    v = einsum(x, wv, equation="bsk,hkd->bhsd")
    scores = einsum(q, k, equation="bhsd,bhtd->bhst")
    p = softmax(scores, dim=3)
    mixed = einsum(p, v, equation="bhst,bhtd->bhsd")
    out = einsum(mixed, wo, equation="bhsd,hdo->bso")
    y = add(x, out)
    up = matmul(y, w1)
    h = relu(up)
    down = matmul(h, w2)
    z = add(y, down)
"""


def megatron() -> list[Graph]:
    """The graph before and after each rule, at two devices; the first rule is for queries, keys and values alike."""
    steps = [Graph.parse(BLOCK, "z")]
    for rule in RULES:
        graph = steps[-1]
        for _ in "qkv" if rule is RULES[0] else "1":
            graph = apply_rule(rule, graph, next(matches(rule, graph, {"n": 2})))
        steps.append(shared(graph))
    return steps


if __name__ == "__main__":
    from partita.solvers.proof.verify import verify_rule

    before, *steps = megatron()
    print(before)
    for number, (rule, graph) in enumerate(zip(RULES, steps, strict=True), 1):
        verdict = verify_rule(rule)
        print(f"\n{number}. {rule.name}: {verdict.verdict} for {verdict.covers}\n\n{graph}")
