"""The passes of an encoding: each adds one kind of decision to a `NetworkBuilder`."""
