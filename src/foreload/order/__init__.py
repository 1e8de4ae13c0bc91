"""A sample's journey: order, read and decode, transform, batch."""
