"""rljax: reinforcement-learning fine-tuning of language models in JAX.

Array axes are named by one key of letters, in einsum strings, suffixes (`x_BTD`) and annotations:

    B batch · T query/time · S key/cache · V vocabulary · D embed · F mlp · H heads · K kv heads
    G heads per kv head · C head dim · N layers · E experts · R LoRA rank · P prompt · L completion
"""

__version__ = "0.1.0"
