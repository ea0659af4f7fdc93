"""Machines: levels, links, collectives, and the roofline of a device."""
