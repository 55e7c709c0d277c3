"""PyTorch reference of the pipeline-native architectures: the oracle of the engine, and the training script."""
