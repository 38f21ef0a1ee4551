"""Times of K-means, by tsapps and by others."""
