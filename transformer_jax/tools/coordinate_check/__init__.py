"""Whether activations keep their size as a model grows: `launch.sh check_parameterization`."""
