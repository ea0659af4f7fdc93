"""The two graphs of an interlaced pipeline."""

import pytest

import partita
from partita import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.interlaced import interlaced
from partita.model.graph.pcg import PCG
from partita.model.graph.stages import boundaries
from partita.model.zoo import build


def captured(name: str) -> PCG:
    return partita.capture(*build(name, small=True))


def names(pcg: PCG, op: str) -> list[str]:
    return [pcg.nodes[i].name for i in pcg.of(op)]


def test_tables_and_loss_are_shared_and_layers_have_what_crosses() -> None:
    pcg = captured("mbart-4.7b")
    found = interlaced(pcg)
    layers, shared = found.layers.graph, found.shared.graph
    assert names(shared, "parameter") == ["token_embedding.weight"]
    assert names(shared, "embedding") == ["token_embedding", "token_embedding_2"]
    assert names(shared, "receive") == ["decoder_norm received"]
    assert names(shared, "send") == ["token_embedding sent", "token_embedding_2 sent"]
    assert shared.nodes[shared.loss].op == "cross_entropy"
    assert names(layers, "from_all") == ["token_embedding from all", "token_embedding_2 from all"]
    assert layers.nodes[layers.loss].name == "decoder_norm to all"
    assert "token_embedding.weight" not in names(layers, "parameter")
    assert len(boundaries(layers)) == len(boundaries(pcg)) - 1  # none before the scores


def test_both_graphs_scale_with_the_batch() -> None:
    pcg = captured("llama-7b")
    for small in ("layers", "shared"):
        graphs = [getattr(interlaced(made), small).graph for made in (pcg, with_batch(pcg, 6))]
        assert with_batch(graphs[0], 6).nodes == graphs[1].nodes


def test_a_loss_of_several_tensors_is_refused() -> None:
    with pytest.raises(PartitaError, match=r"'scores', and what follows it read 'layers\.1\.add_3', 'norm'"):
        interlaced(captured("mixtral-8x7b"))
