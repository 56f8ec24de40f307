"""The engine and the SDK's face; imports none of the other areas."""
