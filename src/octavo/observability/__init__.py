"""What the server tells about itself: metrics."""
