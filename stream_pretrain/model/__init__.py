"""Models: from the `model` section to a network with a loss.

`registry` finds and builds the model that the section names; `protocol` says what the trainer needs
of it. LitGPT's architectures are the first implementation: `architecture` resolves their fields,
`litgpt_definition` and `litgpt_model` make the network, `init_weights` and `pretrained_weights`
fill it, `attention_mask` keeps documents apart. `loss` sums token losses. The `hf_*` modules
translate configurations and weights between LitGPT and Hugging Face.
"""
