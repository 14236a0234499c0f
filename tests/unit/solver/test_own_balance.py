"""nanotron's own split: by the weights of layers and output head."""

from solver.own_balance import own_balance
from tests.builders import a_model

# A layer weighs 4 * 64 * 64 + 3 * 64 * 256 = 65536.
SHAPE = {
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 16,
}


def test_a_head_as_heavy_as_two_layers_takes_their_place_on_the_last_stage() -> None:
    # vocabulary 2048: 2048 * 64 = 131072, two layers; 8 layers and 2 make 10, 5 a stage.
    model = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    assert own_balance(model, 2) == (5, 3)


def test_a_light_head_leaves_the_split_even_only_where_it_fits() -> None:
    # Half a layer: shares of 8.5 / 2 = 4.25 layers: 4 on the first stage, 4 on the last.
    model = a_model(**SHAPE, num_layers=8, vocab_size=512)
    assert own_balance(model, 2) == (4, 4)
    assert own_balance(model, 1) == (8,)
