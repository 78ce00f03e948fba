"""What decoding costs on a GPU, and how fast it is beside transformers, with random models of real sizes."""
