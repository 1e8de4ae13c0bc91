"""Normalisation of whole batches of images, on any device."""
