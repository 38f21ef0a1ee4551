"""Times of products, by tsapps and by the libraries."""
