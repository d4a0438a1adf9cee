"""Classification of images with wrong labels (section 6.1)."""
