"""What a loader recorded, in the formats of other tools."""
