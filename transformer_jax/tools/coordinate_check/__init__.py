"""Whether activations keep their size as a model grows: `--mode=check_parameterization`."""
