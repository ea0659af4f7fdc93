"""Running an emitted program on local ranks beside the unsharded module, and comparing."""
