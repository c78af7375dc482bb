"""Parts of models: linear, embedding, norm and rotary layers. Each knows how a checkpoint names its weights."""
