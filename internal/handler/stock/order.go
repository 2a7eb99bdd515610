package stock

// OrderOf is the order that a stock-rollback message is about; false when the body cannot be read.
func OrderOf(body []byte) (orderSN string, ok bool) {
	request, err := decode(body)
	return request.OrderSN, err == nil
}
