"""The model: what `model.name` or `model.config` mean (`architecture`), the LitGPT network
(`build`), its first weights (`initialise`), its loss as sums over tokens (`loss`), attention within
documents (`mask`), and FLOPs (`flops`).
"""
